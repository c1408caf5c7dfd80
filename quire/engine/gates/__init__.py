"""What a queued request waits for besides room: its adapter, its pictures, its blocks."""
