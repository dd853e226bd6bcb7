"""What several rooms use: closing, files, numbers in arguments, tasks, torch."""
