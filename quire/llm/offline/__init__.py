"""The parts that only ``LLM`` needs: calls that return when all is done."""
