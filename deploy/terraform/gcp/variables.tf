variable "name" {
  description = "Of the cluster, and of all that is made for it."
  type        = string
  default     = "undeterred"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "name: expected 2 to 21 small letters, digits and dashes, a letter first."
  }
}

variable "project" {
  description = "The project that it is made in."
  type        = string
}

variable "region" {
  description = "Where it is made."
  type        = string
}

variable "network" {
  description = "Self-link of the network, with private services access for Cloud SQL and a NAT."
  type        = string
}

variable "subnetwork" {
  description = "Self-link of the subnet of hosts, in the region."
  type        = string
}

variable "domain" {
  description = "Host name of the API; tasks-<domain> is that of the pages of tasks, gateway-<domain> that of the gateway."
  type        = string
}

variable "certificate" {
  description = "Id of a certificate map or managed SSL certificate for the three host names."
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
  default     = "n2-standard-2"
}

variable "database_tier" {
  description = "Kind of the database's instance."
  type        = string
  default     = "db-custom-2-8192"
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
  description = "Secret of Secret Manager with an API key for Temporal; empty: it takes none."
  type        = string
  default     = ""
}

variable "agent_image" {
  description = "Image of agents: Ubuntu 24.04 with Docker, the NVIDIA driver and the trial image."
  type        = string
}

variable "agent_type" {
  description = "Kind of agents' instances."
  type        = string
  default     = "g2-standard-48"
}

variable "agent_zones" {
  description = "Zones of the region in which agents are launched; the first one that has a machine is taken."
  type        = list(string)
}

variable "join_token_secret" {
  description = "Secret of Secret Manager with a join token of the pool, which you write there once the cluster is up."
  type        = string
  default     = "undeterred-join-token"
}
