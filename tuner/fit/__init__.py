"""Windows to fits: acceptance, step time and crossover. Pure: no clock, no I/O."""
