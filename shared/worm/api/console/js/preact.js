// The libraries under one name each. Signals make components follow what they read.
import { Fragment, createElement, render } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useId } from "../vendor/preact-hooks.js";
import { batch, computed, effect, signal } from "../vendor/signals.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(createElement);
export {
  Fragment,
  render,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
  useId,
  batch,
  computed,
  effect,
  signal,
};
