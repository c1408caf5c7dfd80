"""``quire calc``: the planner's formulas as a calculator."""
