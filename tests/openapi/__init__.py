"""OpenAPI import: the importer alone, and imported tools called against stubs made from the same documents."""
