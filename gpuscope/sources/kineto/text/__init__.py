"""Chrome-trace JSON as text: cut into blocks of events, decoded, its decimal times made integers."""
