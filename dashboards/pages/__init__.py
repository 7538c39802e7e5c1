"""One file per page, each with a `PAGE`; a new page is one file and one test."""
