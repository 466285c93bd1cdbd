"""HTTP to plans, events to JSON and SSE. The only importer of litestar."""
