"""Building a release and trying it: no part of the package."""
