"""The gateway's own tools: on files, their versions, code and the web."""
