# A cluster on Google Cloud: two hosts or more with API, orchestrator and gateway behind a load balancer, PostgreSQL of Cloud SQL with a
# standby, a bucket for checkpoints, and what a pool needs to launch agents by deploy/providers/gcp_node.py. README.md beside it says how.

locals {
  labels      = { "undeterred-cluster" = var.name }
  own_secrets = toset(["database-url", "agent-token", "admin-password"])
  secrets = merge(
    { for name in local.own_secrets : name => google_secret_manager_secret.own[name].secret_id },
    var.temporal_api_key_secret == "" ? {} : { "temporal-api-key" = var.temporal_api_key_secret },
  )
  ports = { api = 8080, tasks = 8081, gateway = 8090 }
  hosts = { tasks = "tasks-${var.domain}", gateway = "gateway-${var.domain}" }
  # of Google's load balancers and health checks
  balancers = ["130.211.0.0/22", "35.191.0.0/16"]
}

module "host" {
  source             = "../host"
  cloud              = "gcp"
  place              = var.project
  name               = var.name
  domain             = var.domain
  gateway            = "gateway-${var.domain}:443"
  package            = var.package
  temporal_address   = var.temporal_address
  temporal_namespace = var.temporal_namespace
  bucket             = "gs://${google_storage_bucket.checkpoints.name}"
  secrets            = local.secrets
  join_token_secret  = var.join_token_secret
}

# -- secrets ---------------------------------------------------------------------------------------------------------

resource "random_password" "own" {
  for_each = toset(["database", "agent-token", "admin-password"])
  length   = 40
  special  = false
}

resource "google_secret_manager_secret" "own" {
  for_each  = local.own_secrets
  project   = var.project
  secret_id = "${var.name}-${each.key}"
  labels    = local.labels

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_version" "own" {
  for_each = local.own_secrets
  secret   = google_secret_manager_secret.own[each.key].id
  secret_data = each.key != "database-url" ? random_password.own[each.key].result : join("", [
    "postgresql+psycopg://undeterred:", random_password.own["database"].result, "@",
    google_sql_database_instance.records.private_ip_address, "/undeterred?sslmode=require",
  ])
}

resource "google_secret_manager_secret_iam_member" "control_plane" {
  for_each  = local.secrets
  project   = var.project
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.control_plane.member
}

resource "google_secret_manager_secret_iam_member" "join_token" {
  project   = var.project
  secret_id = var.join_token_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.agent.member
}

# -- database and checkpoints ----------------------------------------------------------------------------------------

resource "google_sql_database_instance" "records" {
  name                = var.name
  project             = var.project
  region              = var.region
  database_version    = "POSTGRES_17"
  deletion_protection = true

  settings {
    edition           = "ENTERPRISE"
    tier              = var.database_tier
    availability_type = "REGIONAL" # commits wait for the standby: nothing is lost with the primary
    disk_autoresize   = true
    user_labels       = local.labels

    backup_configuration {
      enabled                        = true
      point_in_time_recovery_enabled = true
    }

    ip_configuration {
      ipv4_enabled    = false
      private_network = var.network
      ssl_mode        = "ENCRYPTED_ONLY"
    }
  }
}

resource "google_sql_database" "records" {
  name     = "undeterred"
  project  = var.project
  instance = google_sql_database_instance.records.name
}

resource "google_sql_user" "records" {
  name     = "undeterred"
  project  = var.project
  instance = google_sql_database_instance.records.name
  password = random_password.own["database"].result
}

resource "google_storage_bucket" "checkpoints" {
  name                        = "${var.project}-${var.name}-checkpoints"
  project                     = var.project
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels
}

resource "google_storage_bucket_iam_member" "checkpoints" {
  for_each = {
    control_plane = google_service_account.control_plane.member
    agent         = google_service_account.agent.member
  }
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectAdmin"
  member = each.value
}

# -- network ---------------------------------------------------------------------------------------------------------

resource "google_compute_firewall" "balancer" {
  name          = "${var.name}-balancer"
  project       = var.project
  network       = var.network
  source_ranges = local.balancers
  target_tags   = ["${var.name}-control-plane"]

  allow {
    protocol = "tcp"
    ports    = [for port in concat(values(local.ports), [8086]) : tostring(port)]
  }
}

resource "google_compute_firewall" "peers" {
  name        = "${var.name}-peers"
  project     = var.project
  network     = var.network
  source_tags = ["${var.name}-control-plane"]
  target_tags = ["${var.name}-control-plane"]

  allow {
    protocol = "tcp"
    ports    = [tostring(local.ports.api)]
  }
}

resource "google_compute_firewall" "gangs" {
  name        = "${var.name}-gangs"
  project     = var.project
  network     = var.network
  source_tags = ["${var.name}-agent"]
  target_tags = ["${var.name}-agent"]

  allow {
    protocol = "tcp"
  }
}

resource "google_compute_global_address" "balancer" {
  name    = var.name
  project = var.project
}

resource "google_compute_health_check" "control_plane" {
  for_each            = { api = 8080, gateway = 8086 }
  name                = "${var.name}-${each.key}"
  project             = var.project
  check_interval_sec  = 5
  timeout_sec         = 3
  healthy_threshold   = 2
  unhealthy_threshold = 2

  http_health_check {
    port         = each.value
    request_path = "/health/ready"
  }
}

resource "google_compute_backend_service" "control_plane" {
  for_each                        = local.ports
  name                            = "${var.name}-${each.key}"
  project                         = var.project
  protocol                        = each.key == "gateway" ? "H2C" : "HTTP"
  port_name                       = each.key
  load_balancing_scheme           = "EXTERNAL_MANAGED"
  timeout_sec                     = 3600 # of a notebook in which nothing happens
  connection_draining_timeout_sec = 30
  health_checks                   = [google_compute_health_check.control_plane[each.key == "gateway" ? "gateway" : "api"].id]

  backend {
    group = google_compute_region_instance_group_manager.control_plane.instance_group
  }
}

resource "google_compute_url_map" "control_plane" {
  name            = var.name
  project         = var.project
  default_service = google_compute_backend_service.control_plane["api"].id

  dynamic "host_rule" {
    for_each = local.hosts
    content {
      hosts        = [host_rule.value]
      path_matcher = host_rule.key
    }
  }

  dynamic "path_matcher" {
    for_each = local.hosts
    content {
      name            = path_matcher.key
      default_service = google_compute_backend_service.control_plane[path_matcher.key].id
    }
  }
}

resource "google_compute_target_https_proxy" "control_plane" {
  name             = var.name
  project          = var.project
  url_map          = google_compute_url_map.control_plane.id
  ssl_certificates = [var.certificate]
}

resource "google_compute_global_forwarding_rule" "control_plane" {
  name                  = var.name
  project               = var.project
  ip_address            = google_compute_global_address.balancer.id
  load_balancing_scheme = "EXTERNAL_MANAGED"
  port_range            = "443"
  target                = google_compute_target_https_proxy.control_plane.id
}

# -- control plane ---------------------------------------------------------------------------------------------------

resource "google_service_account" "control_plane" {
  account_id   = "${var.name}-plane"
  project      = var.project
  display_name = "Undeterred: control plane of ${var.name}"
}

# what deploy/providers/gcp_node.py does: instances of agents, and no others
resource "google_project_iam_custom_role" "nodes" {
  role_id = replace("${var.name}_nodes", "-", "_")
  project = var.project
  title   = "Undeterred: launches agents of ${var.name}"
  permissions = [
    "compute.disks.create", "compute.instances.create", "compute.instances.delete", "compute.instances.get",
    "compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setServiceAccount",
    "compute.instances.setTags", "compute.images.useReadOnly", "compute.instanceTemplates.get",
    "compute.instanceTemplates.useReadOnly", "compute.subnetworks.use", "compute.zoneOperations.get",
  ]
}

resource "google_project_iam_member" "nodes" {
  project = var.project
  role    = google_project_iam_custom_role.nodes.id
  member  = google_service_account.control_plane.member
}

resource "google_service_account_iam_member" "nodes" {
  service_account_id = google_service_account.agent.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.control_plane.member
}

resource "google_compute_instance_template" "control_plane" {
  name_prefix  = "${var.name}-control-plane-"
  project      = var.project
  machine_type = var.control_plane_type
  tags         = ["${var.name}-control-plane"]
  labels       = local.labels

  disk {
    source_image = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
    disk_size_gb = 30
    auto_delete  = true
    boot         = true
  }

  network_interface {
    subnetwork = var.subnetwork
  }

  service_account {
    email  = google_service_account.control_plane.email
    scopes = ["cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot = true
  }

  metadata = {
    user-data = module.host.control_plane
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_region_instance_group_manager" "control_plane" {
  name               = "${var.name}-control-plane"
  project            = var.project
  region             = var.region
  base_instance_name = "${var.name}-control-plane"
  target_size        = var.control_plane_hosts
  depends_on         = [google_secret_manager_secret_version.own, google_sql_database.records, google_sql_user.records]

  version {
    instance_template = google_compute_instance_template.control_plane.self_link_unique
  }

  dynamic "named_port" {
    for_each = local.ports
    content {
      name = named_port.key
      port = named_port.value
    }
  }

  auto_healing_policies {
    health_check      = google_compute_health_check.control_plane["api"].id
    initial_delay_sec = 900
  }

  # a change of the template replaces one host after the other, and waits until each is healthy; a region has three zones or four
  update_policy {
    type                  = "PROACTIVE"
    minimal_action        = "REPLACE"
    max_surge_fixed       = 4
    max_unavailable_fixed = 0
  }
}

# -- agents ----------------------------------------------------------------------------------------------------------

resource "google_service_account" "agent" {
  account_id   = "${var.name}-agent"
  project      = var.project
  display_name = "Undeterred: agents of ${var.name}"
}

resource "google_compute_instance_template" "agent" {
  name         = "${var.name}-agent"
  project      = var.project
  machine_type = var.agent_type
  tags         = ["${var.name}-agent"]
  labels       = local.labels

  disk {
    source_image = var.agent_image
    disk_size_gb = 200
    auto_delete  = true
    boot         = true
  }

  network_interface {
    subnetwork = var.subnetwork
  }

  scheduling {
    on_host_maintenance = "TERMINATE" # GPUs do not move with their host
    automatic_restart   = false
  }

  service_account {
    email  = google_service_account.agent.email
    scopes = ["cloud-platform"]
  }

  metadata = {
    startup-script = module.host.agent
  }
}
