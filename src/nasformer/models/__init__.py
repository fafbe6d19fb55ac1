"""What all families share: plan, base classes, sharing rules, spaces, heads of tasks, registry, model folders, timm."""
