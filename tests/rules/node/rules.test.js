// What the Firebase SDK lets a page do with a session: its owner reads and listens, and nobody writes.

import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { assertFails, assertSucceeds, initializeTestEnvironment } from "@firebase/rules-unit-testing";
import {
  setLogLevel, addDoc, collection, collectionGroup, deleteDoc, doc, getDoc, getDocs, limit, onSnapshot, orderBy, query, setDoc, updateDoc, where,
  writeBatch,
} from "firebase/firestore";

const SESSION = "users/ann/agent_sessions/s1";
const OPEN = [SESSION, `${SESSION}/turns/t1`, `${SESSION}/journal/000000000001`];
const CLOSED = [`${SESSION}/lease/current`, `${SESSION}/control/current`, `${SESSION}/private/t1.credential.mail`];
const NEWEST = (db) => query(collection(db, `${SESSION}/journal`), where("last", ">", 0), orderBy("last", "desc"), limit(1));

setLogLevel("silent");
const [host, port] = process.env.FIRESTORE_EMULATOR_HOST.split(":");
let rules;

before(async () => {
  const firestore = { host, port: Number(port), rules: readFileSync(process.env.RULES, "utf8") };
  rules = await initializeTestEnvironment({ projectId: process.env.PROJECT, firestore });
  await rules.withSecurityRulesDisabled(async (context) => {
    for (const path of [...OPEN, ...CLOSED]) await setDoc(doc(context.firestore(), path), { last: 1 });
  });
});

after(() => rules.cleanup());

const clients = new Map();

/** Firestore as one user has it; null is nobody. */
function as(uid) {
  if (!clients.has(uid)) clients.set(uid, (uid ? rules.authenticatedContext(uid) : rules.unauthenticatedContext()).firestore());
  return clients.get(uid);
}

/** The first snapshot of what is listened to, or the error in its place. */
const heard = (target) =>
  new Promise((resolve, reject) => {
    const stop = onSnapshot(target, (news) => (stop(), resolve(news)), reject);
  });

describe("the owner", () => {
  for (const path of OPEN) {
    test(`reads and listens to ${path}`, async () => {
      await assertSucceeds(getDoc(doc(as("ann"), path)));
      assert.equal((await assertSucceeds(heard(doc(as("ann"), path)))).data().last, 1);
    });
  }

  test("lists its sessions and turns and follows the journal's newest segment", async () => {
    assert.equal((await assertSucceeds(getDocs(collection(as("ann"), "users/ann/agent_sessions")))).size, 1);
    assert.equal((await assertSucceeds(getDocs(collection(as("ann"), `${SESSION}/turns`)))).size, 1);
    assert.equal((await assertSucceeds(heard(NEWEST(as("ann"))))).docs[0].id, "000000000001");
  });

  for (const path of CLOSED) {
    test(`neither reads nor lists ${path}`, async () => {
      await assertFails(getDoc(doc(as("ann"), path)));
      await assertFails(heard(doc(as("ann"), path)));
      await assertFails(getDocs(collection(as("ann"), path.slice(0, path.lastIndexOf("/")))));
    });
  }

  for (const path of [...OPEN, ...CLOSED]) {
    test(`writes nothing at ${path}`, async () => {
      const target = doc(as("ann"), path);
      await assertFails(setDoc(target, { last: 2 }));
      await assertFails(updateDoc(target, { last: 2 }));
      await assertFails(deleteDoc(target));
      await assertFails(writeBatch(as("ann")).set(target, { last: 2 }).commit());
    });
  }

  test("creates nothing new", async () => {
    await assertFails(setDoc(doc(as("ann"), "users/ann"), { name: "Ann" }));
    await assertFails(setDoc(doc(as("ann"), "users/ann/agent_sessions/s2"), { seq: 1 }));
    await assertFails(addDoc(collection(as("ann"), `${SESSION}/journal`), { last: 2 }));
  });
});

for (const [who, uid] of [["another user", "bob"], ["nobody", null]]) {
  describe(who, () => {
    for (const path of [...OPEN, ...CLOSED]) {
      test(`neither reads, listens to nor writes ${path}`, async () => {
        await assertFails(getDoc(doc(as(uid), path)));
        await assertFails(heard(doc(as(uid), path)));
        await assertFails(setDoc(doc(as(uid), path), { last: 2 }));
      });
    }

    test("lists nothing, in a session or across all of them", async () => {
      for (const path of ["users/ann/agent_sessions", `${SESSION}/turns`, `${SESSION}/journal`])
        await assertFails(getDocs(collection(as(uid), path)));
      for (const group of ["agent_sessions", "turns", "journal", "private"])
        await assertFails(getDocs(collectionGroup(as(uid), group)));
    });
  });
}
