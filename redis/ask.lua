-- ask: one replica reports what it holds and asks for what waits. The reference is extproc/account.py, in the same order.
--
-- KEYS[1]  hash  replica -> entry        {prefix:pool}:4:replicas
-- KEYS[2]  hash  the pool's facts        {prefix:pool}:4:pool        generation, state, lead
-- KEYS[3]  hash  replica -> counters     {prefix:pool}:4:demand
-- ARGV[1]  now, seconds; empty: this server's TIME
-- ARGV[2]  replica, unique to a start of its process
-- ARGV[3]  report, msgpack array: seq, acked, manner (0: asks, 1: asks and returns, 2: alone), mean and least hold_s,
--          ghosts, in use P0, P1, P2 (loads), then the wants, each priority, load, waited_s. A load is two numbers: tokens, slots.
-- ARGV[4]  channel of this pool's wakes
-- ARGV[5]  counters for the controllers, opaque text; empty: as before
-- ARGV[6]  fingerprint of the state the caller has; the state is sent only where it is another
-- ARGV[7]  hash of the policy that the caller goes by
-- Returns  two strings: a msgpack array of accepted 0|1, admitted, total (load), again_s (-1: no need), replicas, lead_s
--          (what is left of the lead; <= 0: nobody leads), now, fingerprint, differing (how many of the replicas go by
--          another policy); and the state (empty: none, or the caller has it)
-- Wakes    by PUBLISH of the replica whose turn it is now.
--
-- An entry is a msgpack array: seq, at, generation, hold_s, since (of its care; -1: none), base, ghosts, in use P0, P1, P2,
-- then per priority the since and the load of its first waiter (since -1: nobody waits), asked_at, held_back (-1: nobody),
-- until_all_of (inf: its care is over by time only), policy, fades_from (where nothing more is heard of it).

local DEAD, HEARD, REPORT, RAMP, FORGET = 2, 1, 1, 2, 60
local KEEP_HEARD, LOOK_AGAIN, NO_STATE_AGAIN, HELD_BACK_AGAIN, GONE = 0.2, 0.05, 0.05, 0.05, 0.5
local TTL = 120

local pack, unpack_ = cmsgpack.pack, cmsgpack.unpack
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local me = ARGV[2]
local report = unpack_(ARGV[3])
local facts = redis.call('HMGET', KEYS[2], 'generation', 'state', 'fingerprint', 'lead')
local generation = tonumber(facts[1])
local state = facts[2] and unpack_(facts[2])
local lead_s = facts[4] and unpack_(facts[4])[3] - now or -1
local fingerprint = facts[3] or ''

local function answer(accepted, admitted, tokens, slots, again, replicas, differing)
  local sent = (fingerprint ~= ARGV[6]) and facts[2] or ''
  return {pack({accepted, admitted, tokens, slots, again, replicas, lead_s, now, fingerprint, differing}), sent}
end

local raw = redis.call('HGETALL', KEYS[1])
local mine
for i = 1, #raw, 2 do
  if raw[i] == me then mine = unpack_(raw[i + 1]) end
end
local seq, acked, known = report[1], report[2], mine and mine[1] or 0
if seq <= known then return answer(0, 0, 0, 0, -1, 0, 0) end
if not generation or (acked > known and now - generation >= REPORT) then
  generation = now
  redis.call('HSET', KEYS[2], 'generation', string.format('%.17g', now))
end

-- its care: what the replica may hold at first, after a loss or its return
local used = {report[8], report[9], report[10], report[11], report[12], report[13]} -- P0 tokens, P0 slots, P1 tokens, ...
local own_tokens = used[1] + used[3] + used[5]
local own_slots = used[2] + used[4] + used[6]
local alone = report[3] == 2
local since, base_tokens, base_slots, until_all_of = -1, 0, 0, math.huge
if report[3] == 1 then
  since, base_tokens, base_slots, until_all_of = now, own_tokens, own_slots, -math.huge
  if mine then
    until_all_of = mine[25] - DEAD
    if mine[5] >= 0 then until_all_of = math.min(until_all_of, mine[27]) end
  end
elseif (not mine or mine[3] ~= generation) and now - generation < REPORT then
  since, base_tokens, base_slots = generation, own_tokens, own_slots
elseif mine and mine[5] >= 0 and now - mine[5] < RAMP then
  since, base_tokens, base_slots, until_all_of = mine[5], mine[6], mine[7], mine[27]
end
local awaits = until_all_of == math.huge or now - generation < REPORT

-- what all others hold, and the first of their waiters
local ghost_tokens, ghost_slots, replicas, differing = report[6], report[7], 0, 0
local first, first_priority, first_since, first_at
local held_back = 3
for i = 1, #raw, 2 do
  local name = raw[i]
  if name ~= me then
    local entry = unpack_(raw[i + 1])
    local silent = now - entry[2]
    if entry[2] >= until_all_of and entry[25] < math.max(since, entry[2]) then awaits = true end
    if silent <= DEAD then
      replicas = replicas + 1
      if entry[28] ~= ARGV[7] then differing = differing + 1 end
      ghost_tokens, ghost_slots = ghost_tokens + entry[8], ghost_slots + entry[9]
      for k = 1, 6 do used[k] = used[k] + entry[9 + k] end
      if now - entry[25] <= HEARD then
        if entry[26] >= 0 then held_back = math.min(held_back, entry[26]) end
        for p = 0, 2 do
          local at = entry[16 + 3 * p]
          if at >= 0 then
            if not first or p < first_priority
              or (p == first_priority and (at < first_since or (at == first_since and name < first))) then
              first, first_priority, first_since, first_at = name, p, at, {entry[17 + 3 * p], entry[18 + 3 * p]}
            end
            break
          end
        end
      end
    else
      local left = math.exp(-math.max(0, now - entry[29]) / entry[4])
      local tokens = (entry[8] + entry[10] + entry[12] + entry[14]) * left
      local slots = (entry[9] + entry[11] + entry[13] + entry[15]) * left
      if slots >= GONE then
        ghost_tokens, ghost_slots = ghost_tokens + tokens, ghost_slots + slots
      elseif silent > FORGET then
        redis.call('HDEL', KEYS[1], name)
        redis.call('HDEL', KEYS[3], name)
      end
    end
  end
end

-- state: limits P0, P1, P2, reserved P0, P1, P2 (loads), and more that is not for us
local function fits(p, tokens, slots)
  local all_tokens = ghost_tokens + used[1] + used[3] + used[5]
  local all_slots = ghost_slots + used[2] + used[4] + used[6]
  local limit = state[2 * p + 1]
  if all_tokens <= 0 and all_slots <= 0 and limit > 0 and limit < tokens then tokens = 0 end
  if all_tokens + tokens > limit or all_slots + slots > state[2 * p + 2] then return false end
  local below_tokens, below_slots = ghost_tokens + tokens, ghost_slots + slots
  for q = 2, p + 1, -1 do
    below_tokens, below_slots = below_tokens + used[2 * q + 1], below_slots + used[2 * q + 2]
  end
  for above = p - 1, 0, -1 do
    below_tokens, below_slots = below_tokens + used[2 * above + 3], below_slots + used[2 * above + 4]
    if below_tokens > state[1] - state[2 * above + 7] or below_slots > state[2] - state[2 * above + 8] then
      return false
    end
  end
  return true
end

if not awaits then since, base_tokens, base_slots, until_all_of = -1, 0, 0, math.huge end
local cap_tokens, cap_slots, young = math.huge, math.huge, false
if since >= 0 then
  cap_tokens, cap_slots, young = base_tokens, base_slots, now - since < REPORT
  if not young and state then
    local risen = (now - since - REPORT) / (RAMP - REPORT)
    cap_tokens = state[1] == math.huge and math.huge or base_tokens + (state[1] - base_tokens) * risen
    cap_slots = state[2] == math.huge and math.huge or base_slots + (state[2] - base_slots) * risen
  end
end

local admitted, capped, at = 0, false, 14
while state and report[at] do
  local p, tokens, slots, came = report[at], report[at + 1], report[at + 2], now - report[at + 3]
  if first and (first_priority < p
    or (first_priority == p and (first_since < came or (first_since == came and first < me)))) then break end
  if held_back < p then break end
  if (young and p == 2) or own_tokens + tokens > cap_tokens or own_slots + slots > cap_slots then
    capped = true
    break
  end
  if not fits(p, tokens, slots) then break end
  used[2 * p + 1], used[2 * p + 2] = used[2 * p + 1] + tokens, used[2 * p + 2] + slots
  report[8 + 2 * p], report[9 + 2 * p] = report[8 + 2 * p] + tokens, report[9 + 2 * p] + slots
  own_tokens, own_slots = own_tokens + tokens, own_slots + slots
  admitted, at = admitted + 1, at + 4
end
local refused = report[at] ~= nil

-- the first waiter of each priority that stays
local entry = {
  seq, now, generation, report[4], since, base_tokens, base_slots, report[6], report[7],
  report[8], report[9], report[10], report[11], report[12], report[13], -1, 0, 0, -1, 0, 0, -1, 0, 0,
  now, -1, until_all_of, ARGV[7], now + math.max(DEAD, report[5]),
}
local own_priority, own_since
if capped then
  entry[26] = report[at]
  held_back = math.min(held_back, report[at])
else
  if alone then
    entry[25] = -math.huge
    if mine then for k = 16, 26 do entry[k] = mine[k] end end
    if entry[26] >= 0 then held_back = math.min(held_back, entry[26]) end
  end
  while report[at] do
    local slot = 16 + 3 * report[at]
    if entry[slot] < 0 then
      entry[slot], entry[slot + 1], entry[slot + 2] = now - report[at + 3], report[at + 1], report[at + 2]
    end
    at = at + 4
  end
  for p = 2, 0, -1 do
    if entry[16 + 3 * p] >= 0 then own_priority, own_since = p, entry[16 + 3 * p] end
  end
end
redis.call('HSET', KEYS[1], me, pack(entry))
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], me, pack({now, ARGV[5]})) end
redis.call('EXPIRE', KEYS[1], TTL)
redis.call('EXPIRE', KEYS[2], TTL)
redis.call('EXPIRE', KEYS[3], TTL)

if state and first and held_back >= first_priority and not (own_priority and (own_priority < first_priority or (own_priority == first_priority
  and (own_since < first_since or (own_since == first_since and me < first))))) then
  if fits(first_priority, first_at[1], first_at[2]) then redis.call('PUBLISH', ARGV[4], first) end
end

local again = -1
if refused then
  if not state then
    again = NO_STATE_AGAIN
  else
    again = replicas > 0 and KEEP_HEARD or math.huge
    if ghost_tokens > 0 or ghost_slots > 0 then again = math.min(again, report[4] * LOOK_AGAIN) end
    if capped then again = HELD_BACK_AGAIN end
    if again == math.huge then again = -1 end
  end
end
local total_tokens = ghost_tokens + used[1] + used[3] + used[5]
local total_slots = ghost_slots + used[2] + used[4] + used[6]
return answer(1, admitted, total_tokens, total_slots, again, replicas + 1, differing)
