"""Every typed input: plan classes, settings, the command line, plan files. Executes nothing."""
