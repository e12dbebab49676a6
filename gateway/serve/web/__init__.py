"""The web console and the views: buildless ES modules and styles, and the Python that serves them."""
