"""From the tables of an nsys export to rows of a Trace."""
