"""The containers an nsys export comes in: SQLite, Parquet, Arrow, or a report to be exported first."""
