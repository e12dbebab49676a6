"""The guarded HTTP client: allowed hosts, private addresses refused, redirects, retry and size limits.

`policy` loads no HTTP client. `client`, `transport` and `download` do, which takes a tenth of a second: import them
where they are used.
"""
