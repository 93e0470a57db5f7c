"""Legato: an agent's turn that cannot be lost."""

from legato.agents import Turn
from legato.agents.loop import Agent
from legato.errors import StepFailed, ToolFailed
from legato.tools import Tool, ToolContext, tool

__all__ = ["Agent", "StepFailed", "Tool", "ToolContext", "ToolFailed", "Turn", "tool"]
