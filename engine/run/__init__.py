"""What drives a run: it carries out the orders of the supervisor and the coordinator."""
