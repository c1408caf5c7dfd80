"""What only ``LLM`` needs: calls that return when all is done."""
