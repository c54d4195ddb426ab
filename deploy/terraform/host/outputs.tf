output "control_plane" {
  description = "cloud-init of a host with API, orchestrator and gateway, for Ubuntu 24.04."
  value       = local.control_plane
}

output "agent" {
  description = "Script of a host with an agent, for an image with Docker and the trial image."
  value       = local.agent
}
