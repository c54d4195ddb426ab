"""The proxy: services of tasks, reached through the API, over connections that their containers opened."""
