"""A team's agent, as it is. Nothing in it knows of Legato."""

import os

from google.adk.agents import LlmAgent
from google.adk.tools import FunctionTool, ToolContext


def transfer(amount: int, to: str, tool_context: ToolContext) -> dict[str, object]:
    """Transfers an amount to somebody."""
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{to} {amount}\n")
    spent = tool_context.state.get("spent", 0) + amount
    tool_context.state["spent"] = spent
    return {"transferred": amount, "spent so far": spent}


def is_large(amount: int, **_: object) -> bool:
    return amount > 100


root_agent = LlmAgent(
    name="bank",
    model="gemini-2.5-flash",
    instruction="Make the transfers you are asked for, each with one call of the tool. Then say what was done.",
    tools=[FunctionTool(transfer, require_confirmation=is_large)],
)
