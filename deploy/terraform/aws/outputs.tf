output "balancer" {
  description = "What the host names of `domain` and tasks-<domain> are to be aliases of."
  value       = aws_lb.control_plane.dns_name
}

output "checkpoints" {
  description = "Bucket for `checkpoint_storage` of configurations."
  value       = aws_s3_bucket.checkpoints.id
}

output "admin_password_secret" {
  description = "Secret with the password of admin at the first start."
  value       = aws_secretsmanager_secret.own["admin-password"].name
}

output "provider" {
  description = "For `det resource-pool settings POOL --provider FILE`."
  value = yamlencode({
    type           = "command"
    launch         = "aws_node.py launch --region ${var.region} --template ${aws_launch_template.agent.name}"
    terminate      = "aws_node.py terminate --region ${var.region}"
    slots_per_node = 4
  })
}
