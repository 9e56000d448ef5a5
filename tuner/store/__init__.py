"""What is remembered: windows, fits, schedules, findings, events; and who may write."""
