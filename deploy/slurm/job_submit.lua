-- For sites that set recovery.spares: only Sentinel puts jobs into that reservation (JobSubmitPlugins=lua, this file beside
-- slurm.conf). Slurm lets users into a reservation, not jobs: without this, the user of a job that waits for a spare node may
-- ask for it with other jobs as well. A site with a job_submit.lua of its own calls refused() in its two functions.

local RESERVATION = "spares" -- as recovery.spares
local MAY = { [0] = true } -- uids that may: root, and the daemon's where it is another

local function refused(job, uid)
   if MAY[uid] or not job.reservation then
      return false
   end
   for name in string.gmatch(job.reservation, "[^,]+") do
      if name == RESERVATION then
         slurm.log_user("Only Sentinel puts jobs into reservation " .. RESERVATION .. ", when they have lost a node.")
         return true
      end
   end
   return false
end

function slurm_job_submit(job, partitions, uid)
   return refused(job, uid) and slurm.ERROR or slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return refused(job, uid) and slurm.ERROR or slurm.SUCCESS
end

return slurm.SUCCESS
