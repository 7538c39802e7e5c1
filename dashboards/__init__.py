"""The dashboard: a Dash application that shows reports and timelines, and measures nothing itself."""
