"""Many ranks → results of the job: their summaries, one clock, who holds whom up, and what it costs."""
