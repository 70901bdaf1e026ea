"""What a job proves: measurements, the payload, evidence."""
