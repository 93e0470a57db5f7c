// Follows one turn straight from Firestore, as a hosted page would, and prints each event's line until its end.

import { readFileSync } from "node:fs";
import { initializeTestEnvironment } from "@firebase/rules-unit-testing";
import { collection, onSnapshot, orderBy, query, where } from "firebase/firestore";

const { FIRESTORE_EMULATOR_HOST, PROJECT, RULES, UID, SESSION } = process.env;
const [host, port] = FIRESTORE_EMULATOR_HOST.split(":");
const firestore = { host, port: Number(port), rules: readFileSync(RULES, "utf8") };
const environment = await initializeTestEnvironment({ projectId: PROJECT, firestore });
const db = environment.authenticatedContext(UID).firestore();

const segments = query(collection(db, "users", UID, "agent_sessions", SESSION, "journal"), where("last", ">", 0), orderBy("last"));
const parts = new Map();
console.error("listening");
const stop = onSnapshot(segments, (news) => {
  for (const change of news.docChanges()) if (change.type === "added") take(change.doc.data());
});

/** An event too large for one document comes in parts. */
function take(segment) {
  const known = [...(parts.get(segment.first) ?? []), segment];
  parts.set(segment.first, known);
  if (known.length < (segment.parts ?? 1)) return;
  const events = known.sort((one, other) => (one.part ?? 0) - (other.part ?? 0)).map((part) => part.events).join("");
  for (const line of events.slice(2, -2).split(",\n")) tell(line);
}

function tell(line) {
  console.log(line);
  if (JSON.parse(line).type !== "turn.completed") return;
  stop();
  environment.cleanup();
}
