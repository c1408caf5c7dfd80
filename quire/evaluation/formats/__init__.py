"""Weight formats side by side: what each one takes of memory, how fast it is, what it costs."""
