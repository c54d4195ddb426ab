# A cluster on AWS: two hosts or more with API, orchestrator and gateway behind load balancers, PostgreSQL of RDS with a standby, a
# bucket for checkpoints, and what a pool needs to launch agents by deploy/providers/aws_node.py. README.md beside it says how.

locals {
  tags = { "undeterred-cluster" = var.name }
  secrets = merge(
    {
      "database-url"   = aws_secretsmanager_secret.own["database-url"].arn
      "agent-token"    = aws_secretsmanager_secret.own["agent-token"].arn
      "admin-password" = aws_secretsmanager_secret.own["admin-password"].arn
    },
    var.temporal_api_key_secret == "" ? {} : { "temporal-api-key" = data.aws_secretsmanager_secret.temporal[0].arn },
  )
  ports = { api = 8080, tasks = 8081, gateway = 8090 }
}

module "host" {
  source             = "../host"
  cloud              = "aws"
  place              = var.region
  name               = var.name
  domain             = var.domain
  gateway            = "${var.domain}:443"
  package            = var.package
  temporal_address   = var.temporal_address
  temporal_namespace = var.temporal_namespace
  bucket             = "s3://${aws_s3_bucket.checkpoints.id}"
  secrets            = local.secrets
  join_token_secret  = var.join_token_secret
}

data "aws_secretsmanager_secret" "temporal" {
  count = var.temporal_api_key_secret == "" ? 0 : 1
  name  = var.temporal_api_key_secret
}

data "aws_secretsmanager_secret" "join_token" {
  name = var.join_token_secret
}

# -- secrets ---------------------------------------------------------------------------------------------------------

resource "random_password" "own" {
  for_each = toset(["database", "agent-token", "admin-password"])
  length   = 40
  special  = false
}

resource "aws_secretsmanager_secret" "own" {
  for_each    = toset(["database-url", "agent-token", "admin-password"])
  name_prefix = "${var.name}-${each.key}-"
  tags        = local.tags
}

resource "aws_secretsmanager_secret_version" "own" {
  for_each  = aws_secretsmanager_secret.own
  secret_id = each.value.id
  secret_string = each.key != "database-url" ? random_password.own[each.key].result : join("", [
    "postgresql+psycopg://undeterred:", random_password.own["database"].result, "@", aws_db_instance.records.endpoint,
    "/undeterred?sslmode=require",
  ])
}

# -- database and checkpoints ----------------------------------------------------------------------------------------

resource "aws_db_subnet_group" "records" {
  name       = var.name
  subnet_ids = var.private_subnet_ids
  tags       = local.tags
}

resource "aws_db_instance" "records" {
  identifier                  = var.name
  engine                      = "postgres"
  engine_version              = "17"
  instance_class              = var.database_class
  allocated_storage           = var.database_gib
  max_allocated_storage       = var.database_gib * 10
  storage_type                = "gp3"
  storage_encrypted           = true
  db_name                     = "undeterred"
  username                    = "undeterred"
  password                    = random_password.own["database"].result
  multi_az                    = true # commits wait for the standby: nothing is lost with the primary
  db_subnet_group_name        = aws_db_subnet_group.records.name
  vpc_security_group_ids      = [aws_security_group.database.id]
  backup_retention_period     = 14
  deletion_protection         = true
  final_snapshot_identifier   = "${var.name}-last"
  auto_minor_version_upgrade  = true
  allow_major_version_upgrade = false
  tags                        = local.tags
}

resource "aws_s3_bucket" "checkpoints" {
  bucket_prefix = "${var.name}-checkpoints-"
  tags          = local.tags
}

resource "aws_s3_bucket_public_access_block" "checkpoints" {
  bucket                  = aws_s3_bucket.checkpoints.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# -- network ---------------------------------------------------------------------------------------------------------

resource "aws_security_group" "balancer" {
  name_prefix = "${var.name}-balancer-"
  vpc_id      = var.vpc_id
  tags        = local.tags

  ingress {
    description = "API, pages of tasks, gateway"
    from_port   = 443
    to_port     = 443
    protocol    = "tcp"
    cidr_blocks = var.clients
  }

  ingress {
    description     = "the same, of agents"
    from_port       = 443
    to_port         = 443
    protocol        = "tcp"
    security_groups = [aws_security_group.agent.id]
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "control_plane" {
  name_prefix = "${var.name}-control-plane-"
  vpc_id      = var.vpc_id
  tags        = local.tags

  dynamic "ingress" {
    for_each = merge(local.ports, { "health of the gateway" = 8086 })
    content {
      description     = ingress.key
      from_port       = ingress.value
      to_port         = ingress.value
      protocol        = "tcp"
      security_groups = [aws_security_group.balancer.id]
    }
  }

  ingress {
    description = "processes of the API hand streams on to each other"
    from_port   = local.ports.api
    to_port     = local.ports.api
    protocol    = "tcp"
    self        = true
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "database" {
  name_prefix = "${var.name}-database-"
  vpc_id      = var.vpc_id
  tags        = local.tags

  ingress {
    from_port       = 5432
    to_port         = 5432
    protocol        = "tcp"
    security_groups = [aws_security_group.control_plane.id]
  }
}

resource "aws_security_group" "agent" {
  name_prefix = "${var.name}-agent-"
  vpc_id      = var.vpc_id
  tags        = local.tags

  ingress {
    description = "containers of a trial over several hosts"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_lb" "control_plane" {
  name                       = var.name
  load_balancer_type         = "application"
  security_groups            = [aws_security_group.balancer.id]
  subnets                    = var.public_subnet_ids
  idle_timeout               = 3600 # of a notebook in which nothing happens
  drop_invalid_header_fields = true
  tags                       = local.tags
}

resource "aws_lb_target_group" "control_plane" {
  for_each             = local.ports
  name                 = "${var.name}-${each.key}"
  port                 = each.value
  protocol             = "HTTP"
  protocol_version     = each.key == "gateway" ? "GRPC" : "HTTP1"
  vpc_id               = var.vpc_id
  deregistration_delay = 30
  tags                 = local.tags

  health_check {
    path                = each.key == "gateway" ? "/AWS.ALB/healthcheck" : "/health/ready"
    port                = each.key == "gateway" ? local.ports.gateway : local.ports.api
    matcher             = each.key == "gateway" ? "0-99" : "200"
    interval            = 5
    timeout             = 3
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.control_plane.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.control_plane["api"].arn
  }
}

resource "aws_lb_listener_rule" "tasks" {
  listener_arn = aws_lb_listener.https.arn
  priority     = 10

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.control_plane["tasks"].arn
  }

  condition {
    host_header {
      values = ["tasks-${var.domain}"]
    }
  }
}

resource "aws_lb_listener_rule" "gateway" {
  listener_arn = aws_lb_listener.https.arn
  priority     = 20

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.control_plane["gateway"].arn
  }

  condition {
    path_pattern {
      values = ["/temporal.api.*", "/grpc.health.*"]
    }
  }
}

# -- control plane ---------------------------------------------------------------------------------------------------

data "aws_iam_policy_document" "instances" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "control_plane" {
  name_prefix        = "${var.name}-control-plane-"
  assume_role_policy = data.aws_iam_policy_document.instances.json
  tags               = local.tags
}

data "aws_iam_policy_document" "control_plane" {
  statement {
    sid       = "Secrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = values(local.secrets)
  }

  statement {
    sid       = "Checkpoints"
    actions   = ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = [aws_s3_bucket.checkpoints.arn, "${aws_s3_bucket.checkpoints.arn}/*"]
  }

  # what deploy/providers/aws_node.py does
  statement {
    sid       = "Look"
    actions   = ["ec2:DescribeInstances", "ec2:DescribeLaunchTemplates", "ec2:DescribeLaunchTemplateVersions"]
    resources = ["*"]
  }

  statement {
    sid       = "Launch"
    actions   = ["ec2:RunInstances", "ec2:CreateTags"]
    resources = ["*"]
    condition {
      test     = "ArnLikeIfExists"
      variable = "ec2:LaunchTemplate"
      values   = [aws_launch_template.agent.arn]
    }
  }

  statement {
    sid       = "Terminate"
    actions   = ["ec2:TerminateInstances"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/undeterred-cluster"
      values   = [var.name]
    }
  }

  statement {
    sid       = "RoleOfAgents"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.agent.arn]
  }
}

resource "aws_iam_role_policy" "control_plane" {
  role   = aws_iam_role.control_plane.id
  policy = data.aws_iam_policy_document.control_plane.json
}

resource "aws_iam_instance_profile" "control_plane" {
  name_prefix = "${var.name}-control-plane-"
  role        = aws_iam_role.control_plane.name
}

resource "aws_launch_template" "control_plane" {
  name_prefix            = "${var.name}-control-plane-"
  image_id               = var.control_plane_image
  instance_type          = var.control_plane_type
  vpc_security_group_ids = [aws_security_group.control_plane.id]
  update_default_version = true
  tags                   = local.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.control_plane.arn
  }

  metadata_options {
    http_tokens = "required"
  }

  block_device_mappings {
    device_name = "/dev/sda1"
    ebs {
      volume_size = 30
      encrypted   = true
    }
  }

  # 16 KiB at most: compressed, as cloud-init takes it
  user_data = base64gzip(module.host.control_plane)

  tag_specifications {
    resource_type = "instance"
    tags          = merge(local.tags, { Name = "${var.name}-control-plane" })
  }
}

resource "aws_autoscaling_group" "control_plane" {
  name                      = "${var.name}-control-plane"
  min_size                  = var.control_plane_hosts
  max_size                  = var.control_plane_hosts + 1
  desired_capacity          = var.control_plane_hosts
  vpc_zone_identifier       = var.private_subnet_ids
  target_group_arns         = [for group in aws_lb_target_group.control_plane : group.arn]
  health_check_type         = "ELB"
  health_check_grace_period = 600
  depends_on                = [aws_secretsmanager_secret_version.own]

  launch_template {
    id      = aws_launch_template.control_plane.id
    version = aws_launch_template.control_plane.latest_version
  }

  # a change of the template replaces one host after the other, and waits until each is healthy
  instance_refresh {
    strategy = "Rolling"
    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 150
    }
  }
}

# -- agents ----------------------------------------------------------------------------------------------------------

resource "aws_iam_role" "agent" {
  name_prefix        = "${var.name}-agent-"
  assume_role_policy = data.aws_iam_policy_document.instances.json
  tags               = local.tags
}

data "aws_iam_policy_document" "agent" {
  statement {
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [data.aws_secretsmanager_secret.join_token.arn]
  }

  statement {
    actions   = ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = [aws_s3_bucket.checkpoints.arn, "${aws_s3_bucket.checkpoints.arn}/*"]
  }
}

resource "aws_iam_role_policy" "agent" {
  role   = aws_iam_role.agent.id
  policy = data.aws_iam_policy_document.agent.json
}

resource "aws_iam_instance_profile" "agent" {
  name_prefix = "${var.name}-agent-"
  role        = aws_iam_role.agent.name
}

resource "aws_launch_template" "agent" {
  name                   = "${var.name}-agent"
  image_id               = var.agent_image
  instance_type          = var.agent_type
  update_default_version = true
  tags                   = local.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.agent.arn
  }

  network_interfaces {
    subnet_id       = var.private_subnet_ids[0]
    security_groups = [aws_security_group.agent.id]
  }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # containers get no credentials of their host
    instance_metadata_tags      = "enabled"
  }

  user_data = base64encode(module.host.agent)

  tag_specifications {
    resource_type = "instance"
    tags          = local.tags
  }
}
