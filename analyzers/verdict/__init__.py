"""The verdict, and the findings of causes that it is made of."""
