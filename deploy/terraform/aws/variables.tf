variable "name" {
  description = "Of the cluster, and of all that is made for it."
  type        = string
  default     = "undeterred"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "name: expected 2 to 21 small letters, digits and dashes, a letter first."
  }
}

variable "region" {
  description = "Where it is made."
  type        = string
}

variable "vpc_id" {
  description = "The network that it is made in."
  type        = string
}

variable "private_subnet_ids" {
  description = "Subnets of hosts and database, in two availability zones or more, with a route out."
  type        = list(string)

  validation {
    condition     = length(var.private_subnet_ids) >= 2
    error_message = "private_subnet_ids: expected two or more, in different availability zones."
  }
}

variable "public_subnet_ids" {
  description = "Subnets of the load balancers, in the same availability zones."
  type        = list(string)
}

variable "clients" {
  description = "Networks that reach API and gateway."
  type        = list(string)
}

variable "domain" {
  description = "Host name of the API; tasks-<domain> is that of the pages of tasks."
  type        = string
}

variable "certificate_arn" {
  description = "Certificate of ACM for both host names."
  type        = string
}

variable "package" {
  description = "What pip installs, as a requirement: a release, or the address of a wheel."
  type        = string
  default     = "undeterred[server]"
}

variable "control_plane_hosts" {
  description = "Hosts that run API, orchestrator and gateway."
  type        = number
  default     = 2

  validation {
    condition     = var.control_plane_hosts >= 2
    error_message = "control_plane_hosts: expected 2 or more: one may be lost, or replaced."
  }
}

variable "control_plane_type" {
  description = "Kind of their instances."
  type        = string
  default     = "m7i.large"
}

variable "control_plane_image" {
  description = "AMI with Ubuntu 24.04 of the control plane."
  type        = string
}

variable "database_class" {
  description = "Kind of the database's instance."
  type        = string
  default     = "db.m7g.large"
}

variable "database_gib" {
  description = "Its disk at first; it grows to ten times that."
  type        = number
  default     = 100
}

variable "temporal_address" {
  description = "host:port of Temporal: Temporal Cloud, or a cluster of your own."
  type        = string
}

variable "temporal_namespace" {
  description = "Its namespace for this cluster."
  type        = string
  default     = "undeterred"
}

variable "temporal_api_key_secret" {
  description = "Secret of Secrets Manager with an API key for Temporal; empty: it takes none."
  type        = string
  default     = ""
}

variable "agent_image" {
  description = "AMI of agents: Ubuntu 24.04 with Docker, the NVIDIA driver and the trial image."
  type        = string
}

variable "agent_type" {
  description = "Kind of agents' instances."
  type        = string
  default     = "g6.12xlarge"
}

variable "join_token_secret" {
  description = "Secret of Secrets Manager with a join token of the pool, which you write there once the cluster is up."
  type        = string
  default     = "undeterred-join-token"
}
