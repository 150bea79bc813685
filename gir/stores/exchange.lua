-- Rate and slot counters of gir.admit.ports on Redis: the algorithm of gir/admit/meter.py, on the server's clock.
-- KEYS: one for each rate, then one for each slot counter, then when this store began to count. ARGV[1]: JSON {rates, slots} in the same order,
--   rate = [limit, window_s, burst, need, want, [[stamp, units], ...]], slot = [limit, replica, want, ttl_s].
-- Answer: one row for each counter and when the store began to count; rate = {units, stamp, remaining, reset_s, retry_s}, slot = {held, free}.
local SEGMENTS = 60
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local asked = cjson.decode(ARGV[1])

-- Units by segment number and the theoretical arrival time; what left the window is forgotten. Segments far in the
-- future are those of a server whose clock was ahead, before a failover: they would never expire.
local function load(key, segment)
  local stored = redis.call('HGETALL', key)
  local meter = {tat = 0, total = 0, segments = {}, gone = {}, changed = {}}
  for i = 1, #stored, 2 do
    local number = tonumber(stored[i])
    if number == nil then
      meter.tat = tonumber(stored[i + 1])
    elseif number < segment - SEGMENTS or number > segment + SEGMENTS then
      meter.gone[#meter.gone + 1] = stored[i]
    else
      meter.segments[number] = tonumber(stored[i + 1])
      meter.total = meter.total + meter.segments[number]
    end
  end
  return meter
end

local function add(meter, number, units)
  local held = meter.segments[number] or 0
  local changed = math.max(0, held + units)
  meter.total = meter.total + changed - held
  meter.segments[number] = changed
  meter.changed[number] = true
end

-- Uncount units of segment `stamp`, and what it does not hold of those before it, the newest first.
local function uncount(meter, stamp, units)
  local numbers = {}
  for number in pairs(meter.segments) do
    if number <= stamp then numbers[#numbers + 1] = number end
  end
  table.sort(numbers)
  for i = #numbers, 1, -1 do
    if units == 0 then return end
    local taken = math.min(units, meter.segments[numbers[i]])
    add(meter, numbers[i], -taken)
    units = units - taken
  end
end

local function save(key, meter, window)
  if #meter.gone > 0 then redis.call('HDEL', key, unpack(meter.gone)) end
  local fields = {'tat', string.format('%.6f', meter.tat)}
  for number in pairs(meter.changed) do
    fields[#fields + 1] = string.format('%.0f', number)
    fields[#fields + 1] = string.format('%.0f', meter.segments[number])
  end
  if #fields > 2 then
    redis.call('HSET', key, unpack(fields))
    redis.call('PEXPIRE', key, math.ceil(2000 * window))
  end
end

-- When `missing` more units will have left the window.
local function frees(meter, missing, segment_s)
  if missing <= 0 then return 0 end
  local numbers = {}
  for number in pairs(meter.segments) do numbers[#numbers + 1] = number end
  table.sort(numbers)
  for _, number in ipairs(numbers) do
    missing = missing - meter.segments[number]
    if missing <= 0 then return (number + SEGMENTS + 1) * segment_s end
  end
  return 0
end

local function take(key, limit, window, burst, need, want, owed)
  local segment_s = window / SEGMENTS
  local segment = math.floor(now / segment_s)
  local interval = window / limit
  local meter = load(key, segment)
  for _, pair in ipairs(owed) do
    local stamp, units = math.min(pair[1], segment), pair[2]
    if stamp >= segment - SEGMENTS then
      if units > 0 then add(meter, stamp, units) else uncount(meter, stamp, -units) end
      local started = meter.tat
      if units > 0 then started = math.max(started, stamp * segment_s) end
      meter.tat = started + units * interval
    end
  end
  meter.tat = math.min(meter.tat, now + 2 * window)
  local backlog = 0
  if burst < limit then backlog = math.max(0, meter.tat - now) / interval end
  local room = math.min(limit - meter.total, math.floor(burst - backlog + 0.000001))
  local units = 0
  if room >= need then units = math.max(0, math.min(want, room)) end
  if units > 0 then
    add(meter, segment, units)
    meter.tat = math.max(now, meter.tat) + units * interval
  end
  local retry = 0
  if units < need then
    local paced = 0
    if burst < limit then paced = (backlog + need - burst) * interval end
    retry = math.max(paced, frees(meter, need - (limit - meter.total), segment_s) - now, 0)
  end
  local newest = -1
  for number in pairs(meter.segments) do newest = math.max(newest, number) end
  local reset = 0
  if meter.total > 0 then reset = (newest + SEGMENTS + 1) * segment_s - now end
  save(key, meter, window)
  return {units, segment, math.max(0, room - units), string.format('%.6f', reset), string.format('%.6f', retry)}
end

local function claim(key, limit, replica, want, ttl)
  local others = 0
  local stored = redis.call('HGETALL', key)
  for i = 1, #stored, 2 do
    local held, ends = string.match(stored[i + 1], '(%d+):([%d.]+)')
    if tonumber(ends) > now + ttl + 60 then
      -- Written when this clock, or that of the server before, was ahead: it would keep the places of the dead.
      redis.call('HSET', key, stored[i], string.format('%s:%.3f', held, now + ttl))
    end
    if tonumber(ends) <= now then
      redis.call('HDEL', key, stored[i])
    elseif stored[i] ~= replica then
      others = others + tonumber(held)
    end
  end
  local held = math.max(0, math.min(want, limit - others))
  if held > 0 then
    redis.call('HSET', key, replica, string.format('%.0f:%.3f', held, now + ttl))
    redis.call('PEXPIRE', key, math.ceil(1000 * ttl) + 1000)
  else
    redis.call('HDEL', key, replica)
  end
  return {held, math.max(0, limit - others - held)}
end

local rows = {}
for i, rate in ipairs(asked[1]) do
  rows[#rows + 1] = take(KEYS[i], rate[1], rate[2], rate[3], rate[4], rate[5], rate[6])
end
for i, slot in ipairs(asked[2]) do
  rows[#rows + 1] = claim(KEYS[#asked[1] + i], slot[1], slot[2], slot[3], slot[4])
end
local born = redis.call('GET', KEYS[#KEYS])
if not born then
  born = string.format('%.6f', now)
  redis.call('SET', KEYS[#KEYS], born)
end
rows[#rows + 1] = born
return rows
