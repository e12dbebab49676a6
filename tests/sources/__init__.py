"""Sources of tools, tested through their two verbs."""
