# What hosts get at their start, whatever the cloud: texts, and nothing that a provider makes.

terraform {
  required_version = ">= 1.6"
}

locals {
  systemd  = "${path.module}/../../systemd"
  sysusers = file("${local.systemd}/undeterred.sysusers.conf")
  program  = { aws = "aws_node.py", gcp = "gcp_node.py" }[var.cloud]
  units = ["undeterred-api.service", "undeterred-orchestrator.service", "undeterred-gateway.service",
  "undeterred.target"]

  configuration = yamlencode(merge(
    {
      database_url_file  = "${var.secrets_folder}/database-url"
      temporal_address   = var.temporal_address
      temporal_namespace = var.temporal_namespace
      log_format         = "json"
      own_buckets        = var.bucket
      api = {
        host                = "0.0.0.0"
        cluster_name        = var.name
        gateway             = var.gateway
        gateway_tls         = true # which the load balancer ends
        proxy_url           = "https://tasks-${var.domain}"
        agent_token_file    = "${var.secrets_folder}/agent-token"
        admin_password_file = "${var.secrets_folder}/admin-password"
        drain_s             = 20
      }
      orchestrator = { provider_folder = "/opt/undeterred-providers" }
      gateway      = { host = "0.0.0.0", drain_s = 20, health_host = "0.0.0.0", health_port = 8086 }
    },
    contains(keys(var.secrets), "temporal-api-key") ? { temporal_api_key_file = "${var.secrets_folder}/temporal-api-key" } : {},
  ))

  files = concat(
    [for unit in local.units : { path = "/etc/systemd/system/${unit}", text = file("${local.systemd}/${unit}") }],
    [
      { path = "/usr/lib/sysusers.d/undeterred.conf", text = local.sysusers },
      { path = "/etc/undeterred/undeterred.yaml", text = local.configuration },
      { path = "/etc/undeterred/cluster.env", text = "UNDETERRED_CONFIG=/etc/undeterred/undeterred.yaml\nFORWARDED_ALLOW_IPS=*\n" },
      { path = "/etc/systemd/system/undeterred-secrets.service", text = file("${path.module}/undeterred-secrets.service") },
      { path = "/opt/undeterred-secrets.py", text = file("${path.module}/secrets_${var.cloud}.py") },
      {
        path = "/etc/undeterred/secrets.env"
        text = "FOLDER=${var.secrets_folder}\nSECRETS=${join(" ", concat([var.place], [for name, id in var.secrets : "${name}=${id}"]))}\n"
      },
      {
        path = "/opt/undeterred-providers/${local.program}"
        text = replace(file("${path.module}/../../providers/${local.program}"), "#!/usr/bin/env python3", "#!/opt/undeterred/bin/python")
      },
    ],
  )

  control_plane = join("\n", ["#cloud-config", yamlencode({
    packages = ["python3-venv", "ca-certificates"]
    write_files = [for each in local.files : {
      path        = each.path
      permissions = startswith(each.path, "/opt/") ? "0755" : "0644"
      content     = each.text
    }]
    runcmd = [
      ["systemd-sysusers"],
      ["python3", "-m", "venv", "/opt/undeterred"],
      ["/opt/undeterred/bin/pip", "install", "--quiet", var.package],
      ["systemctl", "daemon-reload"],
      ["systemctl", "enable", "--now", "undeterred-secrets.service"],
      ["/opt/undeterred/bin/undeterred-migrate", "--config", "/etc/undeterred/undeterred.yaml"],
      concat(["systemctl", "enable", "--now"], local.units),
    ]
  })])

  agent = templatefile("${path.module}/agent.sh.tftpl", {
    identity = templatefile("${path.module}/identity_${var.cloud}.sh.tftpl", { place = var.place, secret = var.join_token_secret })
    package  = var.package
    master   = "https://${var.domain}"
    sysusers = local.sysusers
    unit     = file("${local.systemd}/undeterred-agent.service")
  })
}
