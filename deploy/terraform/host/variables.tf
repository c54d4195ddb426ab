variable "cloud" {
  description = "Whose secrets and nodes: aws or gcp."
  type        = string

  validation {
    condition     = contains(["aws", "gcp"], var.cloud)
    error_message = "cloud: expected aws or gcp."
  }
}

variable "place" {
  description = "Where its secrets are: the region of AWS, the project of Google Cloud."
  type        = string
}

variable "name" {
  description = "Of the cluster."
  type        = string
}

variable "domain" {
  description = "Host name of the API; tasks-<domain> is that of the pages of tasks."
  type        = string
}

variable "gateway" {
  description = "host:port of the gateway."
  type        = string
}

variable "package" {
  description = "What pip installs, as a requirement."
  type        = string
}

variable "temporal_address" {
  description = "host:port of Temporal."
  type        = string
}

variable "temporal_namespace" {
  description = "Its namespace."
  type        = string
}

variable "bucket" {
  description = "Of checkpoints: s3://… or gs://…"
  type        = string
}

variable "secrets" {
  description = "Ids of secrets in the cloud's store, by the name of the file that they are written to."
  type        = map(string)
}

variable "secrets_folder" {
  description = "Folder of those files, in memory."
  type        = string
  default     = "/run/undeterred-secrets"
}

variable "join_token_secret" {
  description = "Secret with the join token of agents."
  type        = string
}
