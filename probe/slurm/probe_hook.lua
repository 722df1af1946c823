-- SPDX-License-Identifier: Apache-2.0
--
-- Predicted run times in Slurm's submissions: loaded by job_submit.lua or cli_filter.lua. Written by `probe slurm install`.
--
-- It only reads @TABLE@, which `probe slurm export` replaces in one step: some twenty
-- short reads however long the table is. It runs inside slurmctld, which waits for it, so it starts no program, opens no
-- connection and reads nothing else. Whatever is missing, old or broken leaves the job as it was submitted.
--
-- A job has a prediction if its comment says probe=NAME; or, where the table holds command lines, if its script has one
-- command, and that is one of them. probe=off opts out. A time limit that the user gave is never touched. Where threads
-- share the work, a job that asks for fewer processors, or may not get as many, is left as it is: what was predicted would
-- not hold.

local TABLE = "@TABLE@"
local MAX_AGE = @MAX_AGE@
local CHUNK = 1024 + 64
local LARGEST = 512 * 1024 * 1024
local NOTHING = { -- Lines of a script beside its one command.
  cd = true, export = true, module = true, ml = true, set = true, ulimit = true, umask = true, unset = true, echo = true,
}

local hook = {}

-- Lua compares strings by the locale; the table is sorted by bytes.
local function less(a, b)
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function escape(key)
  return (key:gsub("%%", "%%25"):gsub("\t", "%%09"):gsub("\n", "%%0A"):gsub("\r", "%%0D"))
end

-- The line that begins at `position`, without its end, and where the next one begins; nil if there is no whole line.
local function line_at(file, position)
  file:seek("set", position)
  local text = file:read(CHUNK)
  local stop = text and text:find("\n", 1, true)
  if not stop then return nil end
  return text:sub(1, stop - 1), position + stop
end

-- The line of `key`, by bisection over positions in the file.
local function search(file, key, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local start = middle
    if middle > low then
      local _, after = line_at(file, middle - 1)
      if not after then return nil end
      start = after
    end
    if start >= high then
      high = middle
    else
      local line, after = line_at(file, start)
      local found = line and line:match("^([^\t]*)\t")
      if not found then return nil end
      if found == key then return line end
      if less(found, key) then low = after else high = middle end
    end
  end
  return nil
end

-- "main=25,short=5" as a table by partition.
local function pairs_of(text)
  local found = {}
  for name, value in text:gmatch("([^=,]+)=([^,]*)") do found[name] = value end
  return found
end

-- What the table says for the first of `keys` that it has, or nil.
local function look_up(keys)
  local file = io.open(TABLE, "rb")
  if not file then return nil end
  local ok, entry = pcall(function()
    local size = file:seek("end")
    if not size or size > LARGEST then return nil end
    local head, first = line_at(file, 0)
    local written, default = (head or ""):match("^probe%-slurm%-table 1 (%d+) ?(%S*)$")
    if not written or os.time() - tonumber(written) > MAX_AGE then return nil end
    for _, key in ipairs(keys) do
      local line = search(file, escape(key), first, size)
      if line then
        local id, seconds, low, high, limits, wishes, more =
          line:match("^[^\t]*\t(%d+)\t([%d.]+)\t([%d.]+)\t([%d.]+)\t([^\t]*)\t([^\t]*)(.*)$")
        if not id then return nil end
        local cpus, wide = more:match("^\t([1-9]%d?%d?%d?):([^\t]*)$")
        if more ~= "" and not cpus then return nil end
        return {
          name = key:sub(3), id = id, seconds = seconds, low = low, high = high, default = default,
          limits = pairs_of(limits), wishes = pairs_of(wishes), cpus = tonumber(cpus or 1),
          wide = pairs_of(wide or ""),
        }
      end
    end
    return nil
  end)
  file:close()
  return ok and entry or nil
end

-- The one command of a script, its words parted by single blanks; nil if it has none or several.
local function only_command(script)
  local command
  for line in (script .. "\n"):gmatch("(.-)\r?\n") do
    line = line:gsub("^%s+", ""):gsub("%s+$", ""):gsub("%s+", " ")
    if line ~= "" and line:sub(1, 1) ~= "#" and not NOTHING[line:match("^%S+")] then
      if command then return nil end
      command = line:gsub("^exec ", ""):gsub("^srun ", "")
    end
  end
  return command
end

-- Keys to look for, or nil where the user opted out.
local function keys_of(comment, script)
  comment = type(comment) == "string" and comment or ""
  local name = comment:match("^probe=(%S+)") or comment:match("%sprobe=(%S+)")
  if name == "off" then return nil end
  if name then return { "n:" .. name } end
  local command = type(script) == "string" and only_command(script)
  return command and { "c:" .. command } or nil
end

-- Limit in minutes, or nil, for a job that may go to any of `partitions`: the longest of them, if each has one.
local function limit_of(entry, partitions)
  local longest
  for _, name in ipairs(partitions) do
    local minutes = tonumber(entry.limits[name])
    if not minutes then return nil end
    longest = math.max(longest or 0, minutes)
  end
  return longest
end

-- Feature to prefer, or nil. A feature that a partition lacks, or whose nodes are too small, would end the submission.
local function wish_of(entry, partitions, cpus, memory)
  local wish
  for _, name in ipairs(partitions) do
    local feature, most_cpus, most_memory = (entry.wishes[name] or ""):match("^([^:]+):(%d+):(%d+)$")
    if not feature or cpus > tonumber(most_cpus) or memory > tonumber(most_memory) then return nil end
    if wish and wish ~= feature then return nil end
    wish = feature
  end
  return wish
end

-- Whether each of `partitions` has nodes with a processor for each thread, and `memory` MB.
local function fits(entry, partitions, memory)
  for _, name in ipairs(partitions) do
    local most_memory = tonumber(entry.wide[name])
    if not most_memory or memory > most_memory then return false end
  end
  return true
end

local function partitions_of(text, default)
  local found = {}
  for name in (text and text ~= "" and text or default or ""):gmatch("[^,]+") do found[#found + 1] = name end
  return found
end

local function note_of(entry)
  return string.format("probe prediction=%s name=%s seconds=%s low=%s high=%s", entry.id, entry.name, entry.seconds,
    entry.low, entry.high)
end

local function told(entry, minutes, feature, cpus)
  local parts = {}
  if cpus then parts[#parts + 1] = string.format("%d processors per task", cpus) end
  if minutes then parts[#parts + 1] = string.format("time limit %d min", minutes) end
  if feature then parts[#parts + 1] = "prefers nodes with " .. feature end
  return string.format("probe: %s: %s s predicted (95 %% interval %s to %s s, prediction %s)%s. --comment=probe=off opts out.",
    entry.name, entry.seconds, entry.low, entry.high, entry.id,
    #parts > 0 and ": " .. table.concat(parts, ", ") or "")
end

local function given(value)
  return value ~= nil and value ~= ""
end

local UNSET_COUNT = 65534 -- NO_VAL16: from there on numbers say that nobody gave one.

local function is_given(count)
  return count ~= nil and count > 0 and count < UNSET_COUNT
end

-- A count of a job, 1 where nobody gave one.
local function number_of(count)
  return is_given(count) and count or 1
end

-- From slurm_job_submit(job_desc, part_list, uid). Changes job_desc, or nothing.
function hook.job_submit(job)
  local keys = keys_of(job.comment, job.script)
  local entry = keys and look_up(keys)
  if not entry then return end
  local partitions = partitions_of(job.partition, entry.default)
  if #partitions == 0 then return end
  local minutes, feature, per_task
  local function one(value) return value == nil or value == slurm.NO_VAL or value <= 1 end
  local free = not (given(job.features) or given(job.prefer) or given(job.req_nodes) or given(job.exc_nodes)
    or given(job.reservation) or given(job.tres_per_node) or given(job.tres_per_job) or given(job.tres_per_socket)
    or given(job.tres_per_task))
  if job.pn_min_tmp_disk and job.pn_min_tmp_disk ~= slurm.NO_VAL and job.pn_min_tmp_disk > 0 then free = false end
  free = free and one(job.num_tasks) and one(job.min_nodes)
  local cpus = math.max(number_of(job.min_cpus), entry.cpus)
  local memory = job.min_mem_per_node or (job.min_mem_per_cpu or 0) * cpus
  if number_of(job.cpus_per_task) < entry.cpus then
    if is_given(job.cpus_per_task) or not free or not fits(entry, partitions, memory) then return end
    per_task = entry.cpus
  end
  if free then feature = wish_of(entry, partitions, cpus, memory) end
  if job.time_limit == slurm.NO_VAL then minutes = limit_of(entry, partitions) end
  local note = note_of(entry)
  if given(job.admin_comment) then note = job.admin_comment .. "; " .. note end
  if per_task then
    job.cpus_per_task = per_task
    job.min_cpus = cpus
    job.pn_min_cpus = math.max(number_of(job.pn_min_cpus), per_task)
  end
  if minutes then job.time_limit = minutes end
  if feature then job.prefer = feature end
  job.admin_comment = note
  slurm.log_user("%s", told(entry, minutes, feature, per_task))
end

-- How sbatch 22.05 shows options that nobody gave.
local UNSET_TIME = "2982616-04:14:00"
local UNSET = { ["0"] = true, ["1"] = true, ["-1"] = true, unset = true }

-- From slurm_cli_pre_submit(options, pack_offset). Changes options, or nothing. `script`: of the job, if it could be read.
function hook.cli_filter(options, script)
  local function option(name)
    local value = options[name]
    return value ~= "invalid-context" and value or nil
  end
  local keys = keys_of(option("comment"), option("wrap") or script)
  local entry = keys and look_up(keys)
  if not entry then return end
  local partitions = partitions_of(option("partition"), entry.default)
  if #partitions == 0 then return end
  local minutes, feature, per_task
  local free = true
  for _, name in ipairs({ "constraint", "prefer", "nodelist", "exclude", "reservation", "gres", "gpus", "gpus-per-node",
    "gpus-per-task", "mem", "mem-per-cpu", "mincpus", "cpus-per-task", "exclusive" }) do
    local value = option(name)
    if given(value) and not UNSET[value] then free = false end
  end
  local nodes, tasks = option("nodes"), option("ntasks")
  if (given(nodes) and not nodes:match("^1%-?[01]?$")) or (given(tasks) and tasks ~= "1") then free = false end
  local asked = tonumber(option("cpus-per-task")) or 0
  if math.max(asked, 1) < entry.cpus then
    if asked > 0 or not free or not fits(entry, partitions, 0) then return end
    per_task = entry.cpus
  end
  local time = option("time")
  if time == nil or time == UNSET_TIME then minutes = limit_of(entry, partitions) end
  if free then feature = wish_of(entry, partitions, entry.cpus, 0) end
  if per_task then options["cpus-per-task"] = tostring(per_task) end
  if minutes then options["time"] = tostring(minutes) end
  if feature then options["prefer"] = feature end
  local comment = option("comment")
  options["comment"] = (given(comment) and comment .. " " or "") .. "prediction=" .. entry.id
  slurm.log_info("%s", told(entry, minutes, feature, per_task))
end

return hook
