"""Plan files: many plans as steps of one text, with variables, expectations and captures."""
