"""What is shown: forms from schemas, results by their MIME types, declarations in words, calls as snippets."""
