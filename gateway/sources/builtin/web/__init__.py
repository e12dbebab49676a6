"""Tools that reach the web. Settings must name hosts or a search provider first."""
