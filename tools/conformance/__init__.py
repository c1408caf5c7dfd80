"""Wire conformance of any server with OpenAI's API, by golden transcripts."""
