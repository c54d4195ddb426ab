output "address" {
  description = "What the host names of `domain`, tasks-<domain> and gateway-<domain> are to lead to."
  value       = google_compute_global_address.balancer.address
}

output "checkpoints" {
  description = "Bucket for `checkpoint_storage` of configurations."
  value       = google_storage_bucket.checkpoints.name
}

output "admin_password_secret" {
  description = "Secret with the password of admin at the first start."
  value       = google_secret_manager_secret.own["admin-password"].secret_id
}

output "provider" {
  description = "For `det resource-pool settings POOL --provider FILE`."
  value = yamlencode({
    type           = "command"
    launch         = "gcp_node.py launch --project ${var.project} --zones ${join(",", var.agent_zones)} --template ${google_compute_instance_template.agent.name}"
    terminate      = "gcp_node.py terminate --project ${var.project} --zones ${join(",", var.agent_zones)}"
    slots_per_node = 4
  })
}
