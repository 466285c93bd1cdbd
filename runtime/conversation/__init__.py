"""From messages to the exact prompt, and from text back to content, tool calls and reasoning."""
