"""Numbers, names and colours as every front shows them."""
