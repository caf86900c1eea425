"""What is live on which lane: promotion, rollback, recovery, and the router that gives a lane its address."""
